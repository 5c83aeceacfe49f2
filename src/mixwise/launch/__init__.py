"""Starting processes: the torchrun line for one or several machines, or a supervisor that never ends survivors."""
