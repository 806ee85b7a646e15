from retrievalkit import testing

# A test of each property, of the component and of the package that it comes with.
test_conforms = testing.conformance("my_name")
