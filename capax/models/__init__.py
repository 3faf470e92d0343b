"""Networks: the ensemble for states, PlaNet's model for images, and the actor and critic of methods without a model."""
