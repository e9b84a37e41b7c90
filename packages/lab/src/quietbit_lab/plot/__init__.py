"""Pictures of the library's own objects: designs, biases, secure sums."""
