DefinitionBlock ("", "SSDT", 2, "TIMEVR", "VMCLOCK", 1)
{
    Scope (\_SB)
    {
        Device (VCLK)
        {
            Name (_HID, "AMZNC10C")
            Name (_CID, "VMCLOCK")
            Name (_DDN, "VMCLOCK")
            Name (_STA, 0x0F)
            Name (_CRS, ResourceTemplate ()
            {
                QWordMemory (ResourceConsumer, PosDecode, MinFixed, MaxFixed, Cacheable, ReadOnly,
                    0x0, 0x0000000140000000, 0x0000000140000fff, 0x0, 0x1000)
            })
        }
    }
}
