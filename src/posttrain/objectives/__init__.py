"""Pure tensor maths: advantages, ratios, surrogates, divergences, weights."""
