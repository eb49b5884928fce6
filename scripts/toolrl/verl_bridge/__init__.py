"""Everything that talks to verl: its settings, its child process, and the classes that it loads."""
