#include <fsdp/optim.h>

#include <limits>

#include "engine/support/twin.h"
#include "fsdp/error.h"
#include "optim/support/error_texts.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("a learning rate that is negative or not finite is refused, and the old one stays") {
  Unit<torch::nn::Linear> model(2, 2);
  Engine engine(model, Mesh::single());
  AdamW optimizer(engine, {.lr = 0.5});
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double wrong : {-1.0, -1e-30, std::nan(""), infinity, -infinity}) {
    CHECK_THROWS_WITH_AS(optimizer.set_lr(wrong), doctest::Contains(kLearningRateHint),
                         InvalidArgument);
    CHECK(optimizer.lr() == 0.5);
  }
  optimizer.set_lr(0);
  CHECK(optimizer.lr() == 0);
}
