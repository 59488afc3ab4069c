// A program on the installed package that asks for a GPU and prints why it gets none.
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
