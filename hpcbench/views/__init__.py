"""Tables, charts and words that every renderer shows; they hold values, and no layout."""
