"""The controller's core (pure): records, the image they make, and the commands that write them."""
