"""How ranks find out who they are, talk to each other and agree."""
