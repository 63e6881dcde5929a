"""How well a model does its task: scores, intervals of their drop, and labels. Needs numpy alone."""
