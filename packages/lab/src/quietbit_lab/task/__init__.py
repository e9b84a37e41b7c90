"""What is learnt: data sets, features and models, each as a `Problem` for the simulator."""
