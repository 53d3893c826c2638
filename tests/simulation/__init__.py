"""The engine under a virtual clock: the real runner, machine and directory, a scripted world."""
