from retrievalkit_testing import conformance

# A test of each property, of the component and of the package that it comes with.
test_conforms = conformance("my_name")
