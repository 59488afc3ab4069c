#include "policy/support/policy_twin.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("plain models are trained to the plain bits on 1 to 4 ranks") {
  for (const PlainModel& model : plain_models()) {
    CAPTURE(model.name);
    for (const int world : {1, 2, 3, 4}) {
      CAPTURE(world);
      const MeshShape shape{.replicate = 1, .shard = world};
      const PolicyResult plain = train_plainly(model, shape, /*by_groups=*/false, std::nullopt);
      for (const int prefetch : {0, 1, 2}) {
        if (!is_tried(world + prefetch)) continue;
        for (const CpuStreamKind streams : every_stream_kind()) {
          CAPTURE(prefetch);
          CAPTURE(static_cast<int>(streams));
          check_bit_equal(
              train_by_policy(model, shape,
                              {.prefetch_units = prefetch, .debug = true, .cpu_streams = streams}),
              plain);
        }
      }
    }
  }
}
