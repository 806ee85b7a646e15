from retrievalkit_testing import conformance

# One test per property of the component and its package.
test_conforms = conformance("my_name")
