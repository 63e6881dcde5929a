"""Which candidates are proposed: rules, combiners, patterns, regions and rule files."""
