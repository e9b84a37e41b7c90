"""What a run costs against those who see its models alone, and not who was asked when."""
