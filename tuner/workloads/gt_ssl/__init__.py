"""GT-SSL: self-supervised learning on geometric trees."""
