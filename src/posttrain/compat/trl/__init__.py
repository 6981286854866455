"""Scripts written for TRL's ``GRPOTrainer`` run after changing one import.

from posttrain.compat.trl import GRPOConfig, GRPOTrainer
"""

from posttrain.compat.trl.config import GRPOConfig
from posttrain.compat.trl.trainer import GRPOTrainer

__all__ = ["GRPOConfig", "GRPOTrainer"]
