"""Starting processes: the torchrun line of each machine, or a supervisor that never stops surviving workers."""
