// Links the installed package and uses the public API alone.
#include <fsdp/dtype.h>
#include <fsdp/error.h>

#include <cstdio>

int main() {
  const fsdp::StateError error({.what = "step() before clip_grad_norm()", .hint = "none needed"});
  std::puts(
      fsdp::error_line(error, {.rank = 1, .world_size = 2, .host = "here", .step = 3}).c_str());
  return error.exit_code() == 70 ? 0 : 1;
}
