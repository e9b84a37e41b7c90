"""quietbit: one private bit per parameter."""
