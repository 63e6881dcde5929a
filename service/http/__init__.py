"""What every request passes: identity, limits, uploads, errors."""
