// Implements doctest for programs that use a test's support code and have their own main.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
