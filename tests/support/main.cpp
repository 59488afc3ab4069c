#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "base/cpu_features.h"

int main(int count, char** arguments) {
  fsdp::leave_hidden_amx_alone();  // as the programs of the library do
  return doctest::Context(count, arguments).run();
}
