"""PyTorch's CUDA caching allocator, simulated: which bytes a sequence of tensors reserves, without a device."""
