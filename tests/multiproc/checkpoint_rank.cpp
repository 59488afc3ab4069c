// One rank that trains from one checkpoint to the next.
//   fsdp-run -n N checkpoint_rank FOLDER OPTIMIZER FROM TO TAG     (exact_training.h)
#include <ATen/Parallel.h>
#include <fsdp/fsdp.h>
#include <fsdp/program.h>

#include <string>
#include <vector>

#include "checkpoint/support/exact_training.h"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  at::set_num_threads(1);
  return fsdp::run_program([&](const fsdp::Mesh& mesh, fsdp::ErrorPlace&) {
    fsdp::testing::train_exactly(mesh, {.folder = words.at(0),
                                        .optimizer = words.at(1),
                                        .from = std::stoll(words.at(2)),
                                        .to = std::stoll(words.at(3)),
                                        .tag = words.at(4),
                                        // Of which ranks read each other's shards where they lie.
                                        .last = 9000});
    return 0;
  });
}
