"""Tables and pictures, made from files alone."""
