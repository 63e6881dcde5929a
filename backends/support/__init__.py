"""What several runtimes share: patterns, predicates, conversion, sessions."""
