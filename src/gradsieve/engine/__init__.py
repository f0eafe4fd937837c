"""How a step reaches the device fast: lowered forms, compiled networks, captured graphs. What is computed stays."""
