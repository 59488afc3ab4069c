// A program on the installed package. It requests a GPU, and prints the reason if it gets none.
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
