"""KD-GAT: knowledge distillation of graph attention networks on CAN buses."""
