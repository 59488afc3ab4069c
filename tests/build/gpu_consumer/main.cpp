// A program on the installed package that wants a GPU, and says why it gets none.
#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include <cstdio>

int main() {
  try {
    fsdp::Mesh::local(1, {.device = fsdp::DeviceKind::kCuda});
    std::printf("there is a GPU\n");
  } catch (const fsdp::Error& error) {
    std::printf("%s\n", error.what());
  }
}
