"""Commands that check runtimes: faults, slow regions, changes between versions."""
