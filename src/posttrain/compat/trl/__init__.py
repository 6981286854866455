"""Scripts written for TRL's ``GRPOTrainer`` run after changing one import."""
