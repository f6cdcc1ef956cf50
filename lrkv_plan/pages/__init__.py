"""Pages and pictures: which public calls they are made of, and in which order they are shown."""
