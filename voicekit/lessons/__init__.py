"""What only the lessons need: their experiments, and the checks of their exercises (`vk.check`)."""
