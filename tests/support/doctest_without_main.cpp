// What doctest's header asks for, in programs that use a test's support and have a main of their
// own.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
