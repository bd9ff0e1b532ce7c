"""`hpcbench hunt`: which nodes of an allocation are bad, found by measuring them in turns."""
