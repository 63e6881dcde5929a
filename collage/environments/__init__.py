"""Plans timed in several Python environments in turn, such as two versions of a runtime."""
