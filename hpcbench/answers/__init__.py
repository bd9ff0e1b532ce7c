"""Topics of answers: analyses of results, with their sentences, tables and charts."""
