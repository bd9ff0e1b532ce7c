"""One package for each kind of case; `registry` lists them."""
