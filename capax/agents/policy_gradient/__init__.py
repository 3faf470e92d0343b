"""Policy-gradient methods: PPO, PPO-Lagrangian and FOCOPS."""
