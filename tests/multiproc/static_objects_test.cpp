// Tests that a mesh, a model, an engine and its optimizers may be static objects.
#include <doctest/doctest.h>

#include "support/run_process.h"

namespace fsdp::testing {

TEST_CASE("static objects may be destroyed in any order, in exit handlers too") {
  // Each letter is an object: mesh, nn::Module, engine, optimizer, scheduler, loss scaler, plain
  // optimizer, tensors.
  const char* const orders[] = {"mneoslpt", "tplsoenm", "oslmnept", "enmtlpso"};
  for (const std::string where : {"static", "exit"}) {
    for (const std::string order : orders) {
      const std::string units = (order[0] == 'm') == (where == "exit") ? "policy" : "type";
      CAPTURE(where);
      CAPTURE(units);
      CAPTURE(order);
      const ProcessResult result = run_process({TORCH_RANK, "static", where, units, order});
      CHECK(result.code == 0);
      CHECK(result.out == "done\n");
      CHECK(result.err.empty());
    }
  }
}

}  // namespace fsdp::testing
