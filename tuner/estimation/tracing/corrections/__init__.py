"""Where a step on fake tensors takes other memory than the same step on a device, operator by operator."""
