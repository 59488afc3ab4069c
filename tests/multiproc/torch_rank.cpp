// Runs one of the programs of torch_rank.h: torch_rank NAME WORDS…
#include "torch_rank.h"

#include <string_view>

int main(int count, char** words) {
  using namespace fsdp::testing;
  const std::string_view name = count > 1 ? words[1] : "";
  if (name == "checkpoint") return checkpoint_rank(count - 1, words + 1);
  if (name == "host" || name == "sharing-host") return host_rank(count - 1, words + 1);
  if (name == "meeting") return meeting_rank(count - 1, words + 1);
  if (name == "static") return static_objects(count - 1, words + 1);
  if (name == "writing") return writing_rank(count - 1, words + 1);
  return 64;
}
