"""Around one training with verl: its attempts, checkpoints, watchdog, loggers and contracts."""
