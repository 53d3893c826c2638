"""A local deployment: its folder, its processes, their starting, healing and ending."""
