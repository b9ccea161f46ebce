"""The core of the group coordinator: classic groups, consumer groups and committed offsets. Pure: no Ray, no clock."""
