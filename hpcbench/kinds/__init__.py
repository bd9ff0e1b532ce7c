"""One room for each kind of case; `kind` says what a kind is, `registry` which there are."""
