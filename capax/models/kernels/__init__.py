"""GPU kernels of the models. Only the models import them."""
